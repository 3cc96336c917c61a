// What pages do with a script beside filtering in place: copy code to the clipboard.
function copyCode(event) {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const text = button.parentElement.querySelector("code").textContent;
  navigator.clipboard.writeText(text).then(() => {
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

if (navigator.clipboard) {
  document.querySelectorAll("button.copy").forEach((button) => { button.hidden = false; });
  document.addEventListener("click", copyCode);
}
