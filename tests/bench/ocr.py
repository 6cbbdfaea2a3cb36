"""B13: how right the local provider is, how fast, how much of the time is the engine's, and how much memory it takes.

The ratios are what counts; seconds depend on the machine and on what else it does.
"""

import tempfile
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import django

django.setup()

from etl.providers.base import Document, OCRResult  # noqa: E402 - Django is set up only now
from etl.providers.local import LocalProvider  # noqa: E402
from etl.work import Work  # noqa: E402
from tests import samples  # noqa: E402
from tests.samples import make  # noqa: E402

MEGABYTE = 1024**2
SAMPLES = (
    ("invoice.pdf", "invoice.txt", 0.0),
    ("notice-zh.pdf", "notice-zh.txt", 0.0),
    ("invoice-scan.pdf", "invoice.txt", 0.03),
    ("notice-zh-scan.jpg", "notice-zh.txt", 0.05),
    ("invoice-mixed.pdf", "invoice.txt", 0.03),
)


def run(*, documents: int) -> None:
    provider = LocalProvider()
    with tempfile.TemporaryDirectory() as folder:
        hundred = Path(folder) / "hundred.pdf"
        hundred.write_bytes(make.printed(make.INVOICE * 50))
        document = samples.document(hundred)
        for temperature in ("cold", "warm"):
            taken = convert(provider, document).metadata["duration_ms"] / 1000
            print(f"100 pages of text, {temperature}: {taken:.2f} s, bar 2 s: {'pass' if taken < 2 else 'short'}")
    correctness(provider)
    memory(provider, documents)
    provider.close()


def convert(provider: LocalProvider, document: Document) -> OCRResult:
    return provider.convert(document, work=Work(seconds=600))


def correctness(provider: LocalProvider) -> None:
    convert(provider, samples.document(samples.sample("notice-zh-scan.jpg")))  # load the engine
    print(f"\n{'':24}{'CER':>8}{'bar':>8}{'pages/s':>10}{'confidence':>12}{'engine':>9}")
    for name, truth, bar in SAMPLES:
        result = convert(provider, samples.document(samples.sample(name)))
        wrong = samples.errors_per_character(samples.true_text(truth), result.markdown)
        milliseconds = max(1, result.metadata["duration_ms"])
        sure = [page.confidence for page in result.pages if page.confidence is not None]
        print(
            f"{name:24}{wrong:8.2%}{bar:8.0%}{1000 * len(result.pages) / milliseconds:10.2f}"
            f"{min(sure, default=1):12.3f}{result.metadata['ocr_ms'] / milliseconds:9.0%}"
        )


def memory(provider: LocalProvider, documents: int) -> None:
    """Ours is that of this process, which stands for a worker's."""
    ours, theirs, processes = [0], [0], set()
    for document in islice(several(), documents):
        convert(provider, document)
        ours.append(resident("self"))
        if provider.process is not None:
            processes.add(provider.process.pid)
            theirs.append(peak(provider.process.pid))
    both = max(ours) + max(theirs)
    print(f"\n{documents} documents, {len(processes)} processes, at most {max(ours) // MEGABYTE} MB here,", end=" ")
    print(f"{max(theirs) // MEGABYTE} MB there: {both // MEGABYTE} MB, bar 1,024: ", end="")
    print("pass" if both < 1024 * MEGABYTE else "short")


def several() -> Iterator[Document]:
    return cycle([samples.document(samples.sample(name)) for name, _, _ in SAMPLES])


def resident(pid: int | str) -> int:
    return kilobytes(pid, "VmRSS")


def peak(pid: int) -> int:
    return kilobytes(pid, "VmHWM")


def kilobytes(pid: int | str, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
