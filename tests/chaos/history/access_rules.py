"""Rules about links, tokens, and users who lose access."""

from collections import defaultdict

from tests.chaos.history.history import Found, History, code_of, rule, uncertain
from tests.chaos.history.record import Line, link_in, path_of

REVOKED_SECONDS = 10  # until a revoked token must be refused, and its streams must be closed
SLACK_SECONDS = 3  # for delays of the machine that runs the tests


@rule
def a_link_works_once(history: History) -> Found:
    used: dict[str, list[Line]] = defaultdict(list)
    for line in history.op("download"):
        used[link_in(line["path"])].append(line)
    for requests in used.values():
        redeemed = [line for line in requests if line["status"] == 302]
        if len(redeemed) > 1:
            yield "a link was redeemed more than once", requests
        for line in requests:
            if redeemed and line["began"] > redeemed[0]["ended"] and not is_rejected_as_used(history, line):
                yield "a used link was not rejected as used", [*redeemed, line]


def is_rejected_as_used(history: History, line: Line) -> bool:
    absent = history.may_be_absent(line["user"], line["began"], line["ended"])
    allowed = {"link_used", "link_mismatch"} | ({"link_revoked"} if absent else set())
    return uncertain(line) or code_of(line) in allowed


@rule
def a_link_works_for_its_client_until_the_next_one(history: History) -> Found:
    first_seen: dict[str, Line] = {}
    for line in history.responses:
        for link in links_in(line):
            first_seen.setdefault(link, line)
    minted = [line for line in history.op("link", status=200) if links_in(line)]
    for line in history.op("download", status=302):
        link = link_in(line["path"])
        if line["agent"] != f"soak/{line['user']}":
            yield "a link worked for another program", [first_seen[link], line]
        for mint in minted:
            is_newer = mint["job"] == line["job"] and first_seen[link]["ended"] < mint["began"]
            if is_newer and mint["ended"] < line["began"] and link not in links_in(mint):
                yield "a link worked after a newer one", [first_seen[link], mint, line]


def links_in(line: Line) -> list[str]:
    body = line["body"] if isinstance(line["body"], dict) else {}
    jobs = [body, *(body.get("results") or [])]
    urls = [body.get("signedUrl"), *((each.get("receipt") or {}).get("signedUrl") for each in jobs)]
    return [link_in(path_of(url)) for url in urls if url]


@rule
def access_ends(history: History) -> Found:
    for line in history.responses:
        began, ended, status = line["began"], line["ended"], line["status"]
        is_refused = status in (0, 401, 503)
        revoked = history.revoked.get(line.get("token", ""))
        if line["op"] == "download":
            if status == 302 and history.is_absent(line["user"], began, ended):
                yield "a link of a deactivated user worked", [line]
        elif revoked and began > revoked["ended"] + REVOKED_SECONDS and not is_refused:
            yield "a revoked token was accepted", [revoked, line]
        elif history.is_absent(line["user"], began, ended) and not is_refused:
            yield "a deactivated user was accepted", [line]
    for line in history.of("stream"):
        yield from outlived(history, line)


@rule
def access_lasts_until_it_ends(history: History) -> Found:
    for line in (*history.responses, *history.of("stream")):
        revoked = history.revoked.get(line.get("token", ""))
        is_revoked = revoked and revoked["began"] < line["ended"]
        may_be_absent = history.may_be_absent(line["user"], line["began"], line["ended"])
        if line["status"] == 401 and not is_revoked and not may_be_absent:
            yield "a valid token was refused", [line]


def outlived(history: History, line: Line) -> Found:
    revoked = history.revoked.get(line["token"])
    spans = [(revoked["ended"], float("inf"))] if revoked else []
    spans += [(absence.deactivated_at, absence.activation_began) for absence in history.absences[line["user"]]]
    for since, until in spans:
        deadline = max(since, line["began"]) + REVOKED_SECONDS + SLACK_SECONDS + history.disturbed(since, line["ended"])
        if line["status"] == 200 and line["began"] < until and min(line["ended"], until) > deadline:
            yield "a stream outlived its access", [line]
