// A click on a column's head sorts its table by that column, a second one the other way round. Cells without a
// value, such as those not run, stay at the end.
"use strict";
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.querySelectorAll("thead tr:last-child th")];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    const body = table.tBodies[0];
    const key = (row) => {
      const cell = row.cells[column];
      if (cell.classList.contains("absent")) return null;
      return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
    };
    const compare = (a, b) => {
      if (a === null || b === null) return (a === null) - (b === null);
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return down ? -order : order;
    };
    const rows = [...body.rows].map((row) => [key(row), row]);
    rows.sort((a, b) => compare(a[0], b[0]));
    body.append(...rows.map((pair) => pair[1]));
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  }));
}
