"""The page in a headless Chromium, as wide as a desktop and a telephone, light and dark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from pipediag.analysis import diagnose_session
from pipediag.analysis.audit import audit
from pipediag.analysis.compare import compare
from pipediag.analysis.sweep import Run, Sweep
from pipediag.report.page import write

from .chromium import FOUND, Chromium
from .pages import full_session, hostile_session
from .test_reports import SESSIONS

pytestmark = pytest.mark.skipif(FOUND is None, reason="there is no Chromium")

FULL, OTHER = diagnose_session(full_session()), diagnose_session(SESSIONS["advice"]())
RUNS = [Run((("--size", size),), ["train.py"], one) for size, one in (("1", FULL), ("2", OTHER))]
PAGES = {
    "full": FULL,
    "hostile": diagnose_session(hostile_session()),
    "long names": diagnose_session(hostile_session("long" * 60)),
    "observed": diagnose_session(SESSIONS["observed"]()),
    "audit": audit(OTHER),
    "comparison": compare(OTHER, FULL),
    "sweep": Sweep("train.py", 3, RUNS),
}

#: Contrast of each text with what lies behind it: the last shape of its drawing that holds it, or the nearest ground.
CONTRAST = """(() => {
  const parse = text => { const p = text.match(/[\\d.]+/g).map(Number); return p.length > 3 && p[3] === 0 ? null : p; };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour) return colour;
    }
    return [255, 255, 255];
  };
  const behind = text => {
    const box = text.getBoundingClientRect(), x = box.left + Math.min(4, box.width / 2), y = box.top + box.height / 2;
    let found = null;
    for (const shape of text.ownerSVGElement.closest("svg").querySelectorAll("rect")) {
      const of = shape.getBoundingClientRect();
      const before = text.compareDocumentPosition(shape) & Node.DOCUMENT_POSITION_PRECEDING;
      if (before && of.left <= x && x <= of.right && of.top <= y && y <= of.bottom) found = shape;
    }
    return found && !text.classList.contains("halo") ? parse(getComputedStyle(found).fill) : ground(text);
  };
  const low = [];
  let count = 0;
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || element.closest("script, title") || !element.getClientRects().length) continue;
    const svg = element instanceof SVGElement, style = getComputedStyle(element);
    const colours = [parse(svg ? style.fill : style.color), svg ? behind(element) : ground(element)].map(light);
    const ratio = (Math.max(...colours) + 0.05) / (Math.min(...colours) + 0.05);
    count += 1;
    if (ratio < 4.5) low.push(element.className + " " + walk.currentNode.data.trim() + " " + ratio.toFixed(2));
  }
  return [count, low];
})()"""
UNNAMED = """[...document.querySelectorAll("svg[role=img]")].filter(x => !x.getAttribute("aria-label")).length
  + [...document.querySelectorAll("img")].filter(x => !x.alt).length
  + [...document.querySelectorAll("table")].filter(x => !x.caption || !x.caption.textContent.trim()).length
  + [...document.querySelectorAll("th")].filter(x => !x.scope || !x.textContent.trim()).length"""
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
#: Cells whose text runs into the next one.
SPILT = """[...document.querySelectorAll("td, th")].filter(x => !x.querySelector("svg"))
  .filter(x => x.scrollWidth > x.clientWidth + 1).map(x => x.textContent)"""
HEADINGS = "[...document.querySelectorAll('h1, h2, h3, h4')].map(x => Number(x.tagName[1]))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name, subject in PAGES.items():
        (folder / f"{name}.html").write_text(write(subject), encoding="utf-8")
    return folder


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", list(PAGES))
def test_page(name: str, width: int, dark: bool, browser: Chromium, folder: Path) -> None:
    file = folder / f"{name}.html"
    browser.open(file, width, dark)
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    # Not innerWidth: a telephone zooms out until a page that is too wide fits.
    assert browser.evaluate(WIDER) <= 0
    assert browser.evaluate(SPILT) == []
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 22, 26)" if dark else "rgb(255, 255, 255)"
    )
    count, low = browser.evaluate(CONTRAST)
    assert count > 20
    assert low == []
    assert browser.evaluate(UNNAMED) == 0
    levels = browser.evaluate(HEADINGS)
    assert levels[0] == 1
    assert all(1 < after <= before + 1 for before, after in pairwise(levels))
    complaints = [event for event in browser.events if event["method"] in COMPLAINTS]
    assert complaints == []
    requests = [event["params"]["request"]["url"] for event in browser.events if event["method"] == REQUEST]
    assert [url for url in requests if not url.startswith("data:")] == [file.as_uri()]


REQUEST = "Network.requestWillBeSent"
COMPLAINTS = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


def test_a_table_of_raw_numbers_sorts(browser: Chromium, folder: Path) -> None:
    browser.open(folder / "full.html", 1280, dark=False)
    column = """(() => {{
      const table = document.querySelectorAll("table.sortable")[0];
      table.querySelectorAll("th button")[{0}].click();
      return [...table.tBodies[0].rows].map(row => row.cells[{0}].textContent);
    }})()"""
    rising = browser.evaluate(column.format(2))
    assert [float(cell) for cell in rising] == sorted(float(cell) for cell in rising)
    assert browser.evaluate(column.format(2)) == rising[::-1]
    assert browser.evaluate("document.querySelectorAll('th[aria-sort]').length") == 1
    names = browser.evaluate(column.format(0))
    assert names == sorted(names)


def test_the_page_holds_its_session(browser: Chromium, folder: Path) -> None:
    browser.open(folder / "full.html", 1280, dark=False)
    read = "JSON.parse(document.getElementById('data').textContent).session.script.argv"
    assert browser.evaluate(read) == ["train.py", "--epochs", "3"]


def test_the_parts_are_closed_until_they_are_wanted(browser: Chromium, folder: Path) -> None:
    browser.open(folder / "full.html", 1280, dark=False)
    opened = "[...document.querySelectorAll('details.part')].filter(one => one.open).map(one => one.parentElement.id)"
    assert browser.evaluate(opened) == []
    browser.evaluate("document.querySelector('nav a[href=\"#ladder\"]').click()")
    deadline = time.monotonic() + 10
    while not browser.evaluate(opened) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert browser.evaluate(opened) == ["ladder"]


def test_the_next_command_can_be_copied(browser: Chromium, folder: Path) -> None:
    browser.open(folder / "full.html", 1280, dark=False)
    copied = """(() => {
      document.querySelector(".command button").click();
      return getSelection().toString();
    })()"""
    assert browser.evaluate(copied).startswith("pipediag ")


def test_the_flame_graph_zooms_searches_and_obeys_the_keyboard(browser: Chromium, folder: Path) -> None:
    browser.open(folder / "full.html", 1280, dark=False)
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser.evaluate("dispatchEvent(new Event('resize'))")
    # Each shown frame: its name, and its left edge and width as whole percent of the graph.
    shown = """(() => {
      const all = document.querySelector(".flame > svg").getBoundingClientRect();
      return [...document.querySelectorAll(".slice")].filter(x => x.style.display !== "none").map(x => {
        const box = x.querySelector("rect").getBoundingClientRect();
        return [x.getAttribute("aria-label"), Math.round(100 * box.width / all.width)];
      });
    })()"""
    key = """(() => {{ const one = document.activeElement;
      one.dispatchEvent(new KeyboardEvent("keydown", {{key: "{}", bubbles: true}}));
      return document.activeElement.getAttribute("aria-label"); }})()"""
    before = browser.evaluate(shown)
    assert before[0][1] == 100 and before[0][0].startswith("a sample: ")
    assert {label.partition(":")[0] for label, _ in before} >= {"loading", "RandomApply"}
    browser.evaluate("document.querySelector('.slice').focus({preventScroll: true})")
    assert browser.evaluate(key.format("ArrowDown")).startswith("loading")
    second = browser.evaluate(key.format("ArrowRight"))
    assert not second.startswith("loading")
    assert browser.evaluate(key.format("Enter")) == second
    zoomed = browser.evaluate(shown)
    assert [share for label, share in zoomed if label == second] == [100]
    assert len(zoomed) < len(before)
    assert browser.evaluate(key.format("Escape")) == before[0][0]
    assert browser.evaluate(shown) == before
    found = """(() => {
      const search = document.querySelector(".flame input");
      search.value = "RANDOM";
      search.dispatchEvent(new Event("input"));
      return [[...document.querySelectorAll(".slice.found")].map(x => x.getAttribute("aria-label")),
              document.querySelector(".flame output").textContent];
    })()"""
    labels, told = browser.evaluate(found)
    assert labels and all("random" in label.lower() for label in labels)
    assert told.startswith(f"{len(labels)} frame") and told.endswith("% of a sample")


def test_the_run_is_read_by_pointer_and_by_keys(browser: Chromium, folder: Path) -> None:
    browser.open(folder / "full.html", 1280, dark=False)
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    pointed = """(() => {{
      const figure = document.querySelector(".lanes .lane + div").getBoundingClientRect();
      document.querySelector(".lanes").dispatchEvent(
        new PointerEvent("pointermove", {{clientX: figure.left + {} * figure.width, bubbles: true}}));
      return document.querySelector(".reading").textContent; }})()"""
    told = [browser.evaluate(pointed.format(share)) for share in (0.05, 0.95)]
    first, last = (float(one.partition(" s: ")[0]) for one in told)
    assert first < last
    assert all(" steps/s, " in one and one.endswith("batches ready") for one in told)
    moved = """(() => {
      const cursor = document.querySelector(".cursor");
      cursor.dispatchEvent(new KeyboardEvent("keydown", {key: "Home"}));
      cursor.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
      return [cursor.getAttribute("aria-valuenow"), cursor.getAttribute("aria-valuetext")];
    })()"""
    at, text = browser.evaluate(moved)
    assert at == "1"
    assert text == browser.evaluate("document.querySelector('.reading').textContent")
