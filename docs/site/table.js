// Filters and sorts the tables that scripts/generated_pages.py makes of CSV files.
document.querySelectorAll("div.filtered").forEach((box) => {
  const table = box.querySelector("table");
  const rows = Array.from(table.tBodies[0].rows);
  const head = Array.from(table.tHead.rows[0].cells);
  const input = document.createElement("input");
  const count = document.createElement("span");
  input.type = "search";
  input.placeholder = "Filter rows, such as: h100 tpot";
  input.setAttribute("aria-label", "Filter rows");
  box.prepend(input, count);

  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row) => {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    });
    count.textContent = ` ${shown} of ${rows.length} rows`;
  };

  head.forEach((cell, column) => {
    cell.tabIndex = 0;
    cell.title = "Sort";
    const sort = () => {
      const up = cell.getAttribute("aria-sort") !== "ascending";
      head.forEach((other) => other.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].textContent;
      const order = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");   // empty cells last
        const numbers = [Number(x), Number(y)];
        const difference = numbers.some(Number.isNaN) ? x.localeCompare(y) : numbers[0] - numbers[1];
        return up ? difference : -difference;
      };
      rows.slice().sort(order).forEach((row) => table.tBodies[0].append(row));
    };
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", (event) => event.key === "Enter" && sort());
  });
  input.addEventListener("input", filter);
  filter();
});
