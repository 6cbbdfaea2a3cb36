"""The OCR engine. Its models run in separate processes, because some of its options apply to a whole process."""

import json
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from etl.providers.local.ocr_engine import split_strip
from etl.providers.local.pages import MAX_STRIP_LENGTH

PROJECT = Path(__file__).parents[2]
FONT = f"{mpl.get_data_path()}/fonts/ttf/DejaVuSans.ttf"

DENORMAL = """
import numpy as np
from etl.providers.local.ocr_engine import Engine
from etl.providers.local.layout_model import LayoutModel
page = np.full((200, 300, 3), 255, np.uint8)
multiply = lambda: float(np.float32(1e-30) * np.float32(1e-10))
engine = Engine()
{first}
print({multiplied})
"""
TEXTS = ["Total 42", "Payable within thirty days of the date of this invoice", "Invoice", "Not later than May"]
LINES = f"""
import json
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from etl.providers.local.rapid_ocr import ParallelRapidOCR

def line(text):
    font = ImageFont.truetype({FONT!r}, 28)
    image = Image.new("RGB", (round(font.getlength(text)) + 16, 48), "white")
    ImageDraw.Draw(image).text((8, 6), text, font=font, fill="black")
    return np.asarray(image)[:, :, ::-1]

engine = ParallelRapidOCR(ThreadPoolExecutor(2))
lines = [line(text) for text in {TEXTS!r}]
alone, together = [engine.recognize_txt([each]) for each in lines], engine.recognize_txt(lines)
print(json.dumps([[[*each.txts, *each.scores] for each in alone], [*zip(together.txts, together.scores)]]))
"""
NORMALIZED = """
import numpy as np
from etl.providers.local.rapid_ocr import DetPreProcess, Preprocess
image = np.random.default_rng(1).integers(0, 256, (320, 200, 3), np.uint8)
options = (1280, "max", [0.5, 0.4, 0.3], [0.5, 0.2, 0.1])
print(np.array_equal(Preprocess(*options)(image), DetPreProcess(*options)(image)))
"""


def output(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "multiplied"),
    [
        ("engine.read(page)", "multiply()"),
        ("engine.read(page)", "engine.executor.submit(multiply).result()"),
        ("LayoutModel().find(page, 1.0)", "multiply()"),
    ],
)
def test_models_treat_denormals_as_zero(first: str, multiplied: str) -> None:
    """Otherwise, detection takes two and a half times as long. The first model of a process sets this option."""
    assert float(output(DENORMAL.format(first=first, multiplied=multiplied))) == 0


@pytest.mark.slow
def test_a_line_is_recognized_identically_alone_and_among_others() -> None:
    """Padding lines to the width of the longest line would take longer and change the result."""
    alone, together = json.loads(output(LINES))
    assert alone == together
    assert [text for text, _ in together] == TEXTS


@pytest.mark.slow
def test_the_normalization_by_a_table_equals_that_of_rapidocr() -> None:
    assert output(NORMALIZED).strip() == "True"


@pytest.mark.parametrize("width", [1, 2, 20])
def test_a_narrow_strip_has_few_parts(width: int) -> None:
    parts = list(split_strip(np.zeros((MAX_STRIP_LENGTH, width, 3), np.uint8)))
    assert sum(len(part) for _, part in parts) == MAX_STRIP_LENGTH
    assert len(parts) < 200
