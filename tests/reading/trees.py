"""Similarity of tables (TEDS) and headings (MHS): 1 - tree edit distance / number of nodes of the larger tree."""

import re
from dataclasses import dataclass, field

from tests.reading.grids import Grid
from tests.reading.text import edit_distance, plain

HEADING = re.compile(r"^[ \t]{0,3}(#{1,6})[ \t]+(.*)$")


@dataclass(slots=True)
class Node:
    kind: str
    text: str = ""
    children: list["Node"] = field(default_factory=list)


def table_tree(grid: Grid) -> Node:
    rows = [
        Node("row", children=[Node(f"cell {cell.rows}x{cell.columns}", cell.text) for cell in cells])
        for cells in grid.lines
    ]
    return Node("table", children=rows)


def heading_tree(markdown: str) -> Node:
    """Return a flat tree of headings, regardless of level. The text below each heading is one node."""
    root = Node("document")
    place, lines = root, list[str]()
    for line in [*markdown.splitlines(), "# end"]:
        if not (match := HEADING.match(line)):
            lines.append(line)
            continue
        if text := plain("\n".join(lines)):
            place.children.append(Node("content", text))
        place, lines = Node("heading", plain(match[2])), []
        root.children.append(place)
    root.children.pop()
    return root


def similarity(left: Node, right: Node) -> float:
    size = max(count(left), count(right))
    return max(0.0, 1 - tree_distance(left, right) / size)


def count(node: Node) -> int:
    return 1 + sum(map(count, node.children))


def cost_of_change(left: Node, right: Node) -> float:
    if left.kind != right.kind:
        return 1.0
    if left.text == right.text:
        return 0.0
    return edit_distance(left.text, right.text) / max(len(left.text), len(right.text))


class Postorder:
    """Nodes of a tree in postorder, with the index of the leftmost leaf below each (Zhang and Shasha 1989)."""

    def __init__(self, root: Node) -> None:
        self.nodes: list[Node] = []
        self.leftmost: list[int] = []
        self.add(root)
        self.roots = sorted({leaf: index for index, leaf in enumerate(self.leftmost)}.values())

    def add(self, node: Node) -> int:
        leaves = [self.add(child) for child in node.children]
        leaf = leaves[0] if leaves else len(self.nodes)
        self.nodes.append(node)
        self.leftmost.append(leaf)
        return leaf


def tree_distance(left: Node, right: Node) -> float:
    """Return the edit distance of two ordered trees. Inserting or deleting a node costs 1."""
    one, two = Postorder(left), Postorder(right)
    known: dict[tuple[int, int], float] = {}
    for first in one.roots:
        for second in two.roots:
            fill(known, one, two, first, second)
    return known[len(one.nodes) - 1, len(two.nodes) - 1]


def fill(known: dict[tuple[int, int], float], one: Postorder, two: Postorder, first: int, second: int) -> None:
    """Add the distances between the subtrees of two key roots."""
    top, side = one.leftmost[first], two.leftmost[second]
    above = [float(index) for index in range(second - side + 2)]
    table = [above]
    for i in range(top, first + 1):
        row = [above[0] + 1]
        begins = one.leftmost[i] == top
        for j in range(side, second + 1):
            index = j - side
            cheapest = min(above[index + 1], row[index]) + 1
            if begins and two.leftmost[j] == side:
                cheapest = min(cheapest, above[index] + cost_of_change(one.nodes[i], two.nodes[j]))
                known[i, j] = cheapest
            else:
                forest = table[one.leftmost[i] - top][two.leftmost[j] - side]
                cheapest = min(cheapest, forest + known[i, j])
            row.append(cheapest)
        table.append(row)
        above = row
