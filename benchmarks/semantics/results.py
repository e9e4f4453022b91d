"""What the suite found of each script: lines of JSON, written at once, and their summary.

A call that is killed loses only the scripts that were running.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from .ways import Result

#: An error that pipediag did not expect and gave up at, as against one that the script's own code raises.
_UNEXPECTED = re.compile(r"(?<!itself raises )\b(?!NotRecordable)[A-Z]\w*Error: [^;]*")
#: What a line of JSON holds of one script.
Row = dict[str, Any]


def row_of(result: Result) -> Row:
    return {
        "name": result.name,
        "difference": result.difference,
        "acted": sorted(result.acted),
        "seconds": round(result.seconds, 2),
        "error": result.error,
        "said": result.said,
    }


def write(row: Row, file: TextIO) -> None:
    """Write one line, so that it is in the file whatever happens next."""
    file.write(json.dumps(row) + "\n")
    file.flush()


def read(path: Path) -> Iterator[Row]:
    """Yield the rows of a file, without the last line if it was cut off."""
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def summary(rows: Iterable[Row]) -> str:
    """Return what was found of all scripts, one kind a line."""
    rows = list(rows)
    acted = Counter(what for row in rows for what in row["acted"])
    differ = [row for row in rows if row["difference"]]
    each = sum(row["seconds"] for row in rows) / max(1, len(rows))
    with_library = sum("moved" in row["acted"] for row in rows if "library" in row["acted"])
    in_code = sum("recorded-code" in row["acted"] for row in rows if "plain-code" in row["acted"])
    return "\n".join(
        [
            f"{len(rows)} scripts, {each:.1f} s each: {len(differ)} with a difference",
            *(f"  {row['name']}  {row['difference']}" for row in differ),
            f"  moved {acted['moved']}; of {acted['library']} with transforms that can move: {with_library}",
            f"  batches recorded in {acted['recorded']}, some made with pixels in {acted['with-pixels']}; of "
            f"{acted['plain-code']} whose plain code calls the library, such calls were recorded in {in_code}",
            f"  kept {acted['kept']}, planned {acted['planned']}, equal within tolerances only {acted['nearly']}",
            f"  ending with an error plainly too: {acted['failed']}, where that is the point: {acted['meant']}",
            *_most_common("error", [row["error"] for row in rows if "meant" not in row["acted"]]),
            *_most_common("pipediag gave up", [_unexpected(row) for row in rows if not row["error"]]),
        ]
    )


def _unexpected(row: Row) -> str:
    told = (line for said in row["said"].values() for line in said if "nothing" in line)
    return next((found[0] for found in map(_UNEXPECTED.search, told) if found), "")


def _most_common(what: str, texts: list[str], most: int = 5) -> list[str]:
    """Return the most common of these texts, one a line."""
    return [f"    {count} x {what}: {text[:100]}" for text, count in Counter(filter(None, texts)).most_common(most)]
