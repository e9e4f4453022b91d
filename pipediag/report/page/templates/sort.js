document.querySelectorAll("table.sortable").forEach(function (table) {
  var body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach(function (head, column) {
    var button = document.createElement("button");
    button.type = "button";
    button.append.apply(button, Array.from(head.childNodes));
    head.append(button);
    button.addEventListener("click", function () {
      var down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("thead th").forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      var rows = Array.from(body.rows);
      rows.sort(function (a, b) {
        var one = a.cells[column].textContent.trim(), other = b.cells[column].textContent.trim();
        var difference = parseFloat(one) - parseFloat(other);
        var order = isNaN(difference) ? one.localeCompare(other) : difference;
        return down ? -order : order;
      });
      body.append.apply(body, rows);
    });
  });
});
