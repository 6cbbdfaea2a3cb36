"""Score readers on folders of documents. Used by `make read-bench`.

python -m tests.reading.score --corpus FOLDER --half dev --reader local --reader markitdown

The reader `api` is a complete installation, and `local` is only its reader. Peer readers run in .venv-peers.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.reading import results
from tests.reading.corpus import Case, cases
from tests.reading.installation import API, read_by_api
from tests.reading.readers import READERS
from tests.reading.reading import Reading, read_all
from tests.reading.report import details, tables
from tests.reading.results import Results
from tests.reading.scoring import score, words_of_pages


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.reading.score", description=__doc__)
    parser.add_argument("--corpus", type=Path, action="append", required=True, help="a folder; may be repeated")
    parser.add_argument("--reader", choices=(API, *READERS), action="append", help="may be repeated; default: local")
    parser.add_argument("--half", choices=("dev", "held"), help="default: both")
    parser.add_argument("--only", default="", help="only documents whose name contains this")
    parser.add_argument("--pages", type=int, help="maximum number of pages of a document")
    parser.add_argument("--keep", type=Path, help="a folder for the readings and scores of each corpus")
    parser.add_argument("--again", action="store_true", help="score the readings in --keep instead of reading again")
    parser.add_argument("--verbose", action="store_true", help="print a line for each document, with the missed parts")
    options = parser.parse_args()
    if options.again and not options.keep:
        parser.error("--again needs --keep")
    selected = [
        case
        for folder in options.corpus
        for case in cases(folder, half=options.half)
        if options.only in case.name and (options.pages is None or len(words_of_pages(case)) <= options.pages)
    ]
    found: Results = {}
    for reader in options.reader or ["local"]:
        found[reader] = []
        for case, reading in readings(reader, selected, options.keep if options.again else None):
            found[reader].append(results.Result(case, reading, score(case, reading)))
            if options.verbose:
                print(details(reader, found[reader][-1].score), flush=True)
        if options.keep:
            results.save(options.keep, reader, found[reader])
    print(tables({reader: [each.score for each in own] for reader, own in found.items()}))


def readings(reader: str, selected: Sequence[Case], saved: Path | None) -> Iterable[tuple[Case, Reading]]:
    if saved is not None:
        return results.load(saved, reader, selected)
    return read_by_api(selected) if reader == API else read_all(reader, selected)


if __name__ == "__main__":
    main()
