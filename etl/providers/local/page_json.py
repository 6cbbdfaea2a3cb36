"""JSON description of pages, in the coordinates of the API: points from the top left of the upright page."""

from typing import Any

from etl.providers.local.boxes import Box
from etl.providers.local.layout import Block
from etl.providers.local.page_recognition import PageText


def describe(page: PageText, number: int) -> dict[str, Any]:
    """Return the size of a page and its blocks in reading order, as JSON."""
    blocks = [(turn, block) for turn, blocks in page.parts for block in blocks]
    return {
        "page": number,
        "width": round(page.width, 1),
        "height": round(page.height, 1),
        "rotation": 0,
        "blocks": [
            {
                "id": f"{number}-{index}",
                "kind": block.kind,
                "bbox": rounded(upright(block, turn, page.width, page.height)),
                "text": block.text,
            }
            for index, (turn, block) in enumerate(blocks, start=1)
        ],
    }


def describe_lines(page: PageText) -> list[list[tuple[float, float, float, float, str]]]:
    """Return the lines of a page, each with the boxes and texts of its cells."""
    size = page.width, page.height
    return [[(*rounded(upright(cell, turn, *size)), cell.text) for cell in row] for turn, row in page.lines]


def rounded(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    x0, y0, x1, y1 = (round(each, 1) for each in box)
    return x0, y0, x1, y1


def upright(block: Block | Box, turn: int, width: float, height: float) -> tuple[float, float, float, float]:
    """Return the bounding box of a block or word on its page.

    `turn`: the clockwise rotation of the page, in degrees, after which the part with the block is upright.
    """
    match turn:
        case 90:
            return block.y0, height - block.x1, block.y1, height - block.x0
        case 180:
            return width - block.x1, height - block.y1, width - block.x0, height - block.y0
        case 270:
            return width - block.y1, block.x0, width - block.y0, block.x1
        case _:
            return block.x0, block.y0, block.x1, block.y1
