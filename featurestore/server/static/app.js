// What pages do with a script beside filtering in place: copy code, and sort the rows that are shown.
function copyCode(button) {
  const text = button.parentElement.querySelector("code").textContent;
  navigator.clipboard.writeText(text).then(() => {
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

function valueOf(row, column) {
  const cell = row.cells[column];
  const time = cell.querySelector("time");
  return time ? time.dateTime : cell.textContent.trim();
}

function numberOf(text) {
  return /^-?[\d,]/.test(text) ? Number(text.replaceAll(",", "").replace(/ %$/, "")) : NaN;
}

function compareTexts(left, right) {
  if (!left || !right) return (left ? 0 : 1) - (right ? 0 : 1); // what is empty comes last
  const numbers = [numberOf(left), numberOf(right)];
  if (numbers.some(Number.isNaN)) return left.localeCompare(right, "en", { numeric: true });
  return numbers[0] - numbers[1];
}

function sortRows(button) {
  const head = button.closest("th"), table = head.closest("table");
  const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  table.querySelectorAll("th[aria-sort]").forEach((other) => { other.removeAttribute("aria-sort"); });
  head.setAttribute("aria-sort", order);
  const rows = Array.from(table.tBodies[0].rows), column = head.cellIndex;
  rows.sort((first, second) => {
    const left = valueOf(first, column), right = valueOf(second, column);
    const found = compareTexts(left, right);
    return order === "ascending" || !left || !right ? found : -found;
  });
  table.tBodies[0].append(...rows);
}

function prepare(part) {
  if (navigator.clipboard) {
    part.querySelectorAll("button.copy").forEach((button) => { button.hidden = false; });
  }
  part.querySelectorAll("thead th").forEach((head) => {
    const table = head.closest("table");
    if (head.querySelector("button, .hidden") || table.tBodies[0].rows.length < 2) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
  });
}

prepare(document);
document.addEventListener("htmx:after:swap", () => { prepare(document); });
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy, button.sort");
  if (button) (button.className === "copy" ? copyCode : sortRows)(button);
});
