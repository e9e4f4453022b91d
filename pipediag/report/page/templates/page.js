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
document.querySelectorAll(".command").forEach(function (command) {
  var button = document.createElement("button"), code = command.querySelector("code");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", function () {
    var range = document.createRange();
    range.selectNodeContents(code);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = document.execCommand("copy") ? "Copied" : "Select";
  });
  command.append(button);
});
function openTarget() {
  var target = location.hash && document.getElementById(location.hash.slice(1));
  var part = target && target.querySelector("details.part");
  if (part) { part.open = true; target.scrollIntoView(); }
}
addEventListener("hashchange", openTarget);
openTarget();
