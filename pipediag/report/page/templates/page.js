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
function fit(text, name, width) {
  text.textContent = name;
  var length = text.getComputedTextLength(), most = Math.floor((width - 16) * name.length / (length || 1));
  if (width && length && most < name.length) text.textContent = most < 4 ? "" : name.slice(0, most - 1) + "\u2026";
}
function fitStacks() {
  document.querySelectorAll(".stack:not([role=tree]) svg > text").forEach(function (text) {
    text.dataset.name = text.dataset.name || text.textContent;
    fit(text, text.dataset.name, text.previousElementSibling.getBoundingClientRect().width);
  });
}
addEventListener("resize", fitStacks);
document.querySelectorAll("details").forEach(function (one) { one.addEventListener("toggle", fitStacks); });
fitStacks();
document.querySelectorAll(".flame").forEach(function (flame) {
  var whole = flame.dataset.whole, tree = flame.firstElementChild, bar = document.createElement("p");
  var frames = Array.from(tree.querySelectorAll(".slice"), function (node) {
    var text = node.querySelector("text");
    return {
      node: node, text: text, name: text.textContent, label: node.getAttribute("aria-label"), level: Number(node.getAttribute("aria-level")),
      begin: parseFloat(node.getAttribute("x")), share: parseFloat(node.getAttribute("width"))
    };
  });
  var zoomed = frames[0], search = document.createElement("input"), back = document.createElement("button"), told = document.createElement("output");
  search.type = "search";
  search.placeholder = "Find a function or a line";
  search.setAttribute("aria-label", search.placeholder);
  back.type = "button";
  back.textContent = "Show all";
  bar.className = "flame-bar";
  bar.append(search, back, told);
  flame.prepend(bar);
  var help = "Click a frame, or press Enter on it, to enlarge it. Arrow keys move, Escape shows all.";
  function within(one, other) { return one.begin >= other.begin - 0.005 && one.begin + one.share <= other.begin + other.share + 0.015 && one.level >= other.level; }
  function draw() {
    var wide = tree.clientWidth;
    back.hidden = zoomed === frames[0];
    frames.forEach(function (one) {
      var above = one.level < zoomed.level && within(zoomed, one), shown = above || within(one, zoomed);
      one.node.style.display = shown ? "" : "none";
      if (!shown) return;
      var share = above ? 100 : 100 * one.share / zoomed.share;
      one.node.setAttribute("x", (above ? 0 : Math.max(0, 100 * (one.begin - zoomed.begin) / zoomed.share)) + "%");
      one.node.setAttribute("width", Math.min(100, share) + "%");
      one.node.classList.remove("narrow");
      fit(one.text, one.name, share * wide / 100);
    });
  }
  function zoom(one) { zoomed = one; draw(); focus(one); }
  function focus(one) {
    frames.forEach(function (other) { other.node.setAttribute("tabindex", other === one ? "0" : "-1"); });
    one.node.focus({ preventScroll: true });
  }
  function tell(text) { told.textContent = text; }
  frames.forEach(function (one, n) {
    one.node.setAttribute("tabindex", n ? "-1" : "0");
    one.node.addEventListener("click", function () { zoom(one); });
    one.node.addEventListener("focus", function () { tell(one.label); });
    one.node.addEventListener("pointerenter", function () { tell(one.label); });
    one.node.addEventListener("keydown", function (event) {
      var visible = frames.filter(function (other) { return other.node.style.display !== "none"; }), at = visible.indexOf(one), to = null;
      var peers = visible.filter(function (other) { return other.level === one.level; }), place = peers.indexOf(one);
      if (event.key === "Enter" || event.key === " ") to = one;
      else if (event.key === "Escape") to = frames[0];
      else if (event.key === "ArrowLeft") to = peers[place - 1];
      else if (event.key === "ArrowRight") to = peers[place + 1];
      else if (event.key === "ArrowDown") to = visible[at + 1] && visible[at + 1].level > one.level ? visible[at + 1] : null;
      else if (event.key === "ArrowUp") to = visible.slice(0, at).reverse().find(function (other) { return other.level < one.level; });
      else return;
      event.preventDefault();
      if (to) (event.key.startsWith("Arrow") ? focus : zoom)(to);
    });
  });
  search.addEventListener("input", function () {
    var wanted = search.value.trim().toLowerCase(), count = 0, end = -1, sum = 0;
    flame.classList.toggle("searching", wanted !== "");
    frames.forEach(function (one) {
      var found = wanted !== "" && one.label.toLowerCase().includes(wanted);
      one.node.classList.toggle("found", found);
      if (!found) return;
      count += 1;
      if (one.begin >= end - 0.005) { sum += one.share; end = one.begin + one.share; }
    });
    tell(wanted ? count + (count === 1 ? " frame, " : " frames, ") + Math.round(sum) + " % of " + whole : help);
  });
  back.addEventListener("click", function () { zoom(frames[0]); });
  addEventListener("resize", draw);
  var part = flame.closest("details");
  if (part) part.addEventListener("toggle", draw);
  tell(help);
  draw();
});
document.querySelectorAll(".lanes").forEach(function (lanes) {
  var points = JSON.parse(lanes.dataset.points), begin = Number(lanes.dataset.begin), seconds = Number(lanes.dataset.seconds);
  var figure = lanes.querySelector(".lane + div"), cursor = document.createElement("div"), told = document.createElement("p"), at = 0;
  points.sort(function (one, other) { return one[0] - other[0]; });
  cursor.className = "cursor";
  [["role", "slider"], ["tabindex", "0"], ["aria-label", "A moment of the run"], ["aria-valuemin", "0"], ["aria-valuemax", points.length - 1]].forEach(function (pair) { cursor.setAttribute(pair[0], pair[1]); });
  told.className = "note reading";
  told.textContent = "Point at the figure, or use the arrow keys, to read a moment.";
  lanes.append(cursor);
  lanes.after(told);
  function show(n) {
    at = Math.max(0, Math.min(points.length - 1, n));
    var point = points[at], middle = (Number(point[0]) + Number(point[1])) / 2;
    cursor.style.left = figure.offsetLeft + figure.offsetWidth * (middle - begin) / seconds + "px";
    cursor.setAttribute("aria-valuenow", at);
    cursor.setAttribute("aria-valuetext", point[2]);
    cursor.classList.add("set");
    told.textContent = point[2];
  }
  lanes.addEventListener("pointermove", function (event) {
    var box = figure.getBoundingClientRect(), time = begin + seconds * (event.clientX - box.left) / box.width, best = 0, least = Infinity;
    points.forEach(function (point, n) {
      var away = Math.max(point[0] - time, time - point[1], 0);
      if (away < least) { least = away; best = n; }
    });
    if (event.clientX >= box.left) show(best);
  });
  cursor.addEventListener("focus", function () { show(at); });
  cursor.addEventListener("keydown", function (event) {
    var step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -points.length, End: points.length }[event.key];
    if (!step) return;
    event.preventDefault();
    show(at + step);
  });
});
