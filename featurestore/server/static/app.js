// Scripts of pages: copy code and tables, and sort the displayed rows.
function copy(button) {
  const table = button.parentElement.querySelector("table");
  const text = table ? asText(table) : button.parentElement.querySelector("code").textContent;
  navigator.clipboard.writeText(text).then(() => {
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = button.dataset.label; }, 1500);
  });
}

// Tab-separated text, for spreadsheets.
function asText(table) {
  const line = (row) => Array.from(row.cells, (cell) => valueOf(cell).replace(/\s+/g, " ")).join("\t");
  return Array.from(table.rows, line).join("\n");
}

function valueOf(cell) {
  const time = cell.querySelector("time");
  return time ? time.dateTime : cell.querySelector("svg.histogram") ? "" : cell.textContent.trim();
}

function numberOf(text) {
  return /^-?[\d,]/.test(text) ? Number(text.replaceAll(",", "").replace(/ %$/, "")) : NaN;
}

function compareTexts(left, right) {
  if (!left || !right) return (left ? 0 : 1) - (right ? 0 : 1); // empty cells last
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
    const left = valueOf(first.cells[column]), right = valueOf(second.cells[column]);
    const difference = compareTexts(left, right);
    return order === "ascending" || !left || !right ? difference : -difference;
  });
  table.tBodies[0].append(...rows);
}

function addCopy(table) {
  const wide = table.parentElement;
  if (wide.parentElement.className === "copied" || table.tBodies[0].rows.length < 2) return;
  const around = document.createElement("div"), button = document.createElement("button");
  around.className = "copied";
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy the table";
  wide.replaceWith(around);
  around.append(wide, button);
}

function prepare(part) {
  if (navigator.clipboard) {
    part.querySelectorAll("div.wide > table").forEach(addCopy);
    part.querySelectorAll("button.copy").forEach((button) => {
      button.hidden = false;
      button.dataset.label = button.textContent;
    });
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
  if (button) (button.className === "copy" ? copy : sortRows)(button);
});
// The key "/" moves to the search field, unless the user types into another field.
document.addEventListener("keydown", (event) => {
  const search = document.getElementById("find");
  const isTyping = event.target.closest("input, select, textarea, [contenteditable]");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping || !search) return;
  event.preventDefault();
  search.focus();
  search.select();
});
