"""A simulated next release and an earlier one: copies of this code with typical changes of a release.

The patches make changes that CONTRIBUTING.md allows between releases: a column, an argument of a message, a kind of
message, a kind of event, a field of a run-state, a setting. Old and new processes run side by side.
"""

import shutil
from pathlib import Path

from config.dev.stack import processes
from config.dev.stack.kept_settings import KeptSettings
from config.dev.stack.orphan_watchdog import PROJECT
from config.dev.stack.process import Process
from tests.chaos.documents import BOTH_QUEUES
from tests.chaos.site import QUEUES, Site

PARTS = ("config", "etl", "exports", "rules", "templates", "tests")
# The latest migration.
LATEST_MIGRATION = max(path.stem for path in (PROJECT / "exports" / "migrations").glob("0*.py"))
MIGRATION = f"""
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("exports", "{LATEST_MIGRATION}")]
    operations = [
        migrations.AddField("chunk", "made_by", models.CharField(max_length=20, db_default="", blank=True)),
    ]
"""
TASK = """

@shared_task(name="exports.look_ahead")
def look_ahead(**_later: object) -> None:
    periodic.run_if_due("look_ahead", every=0, run=lambda: None)
"""
# An unknown kind of event, before a job's end.
EVENT = """
    sql.one(
        "WITH moved AS (UPDATE exports_jobs SET event_seq = event_seq + 1 WHERE job_id = %(job)s RETURNING event_seq)"
        " INSERT INTO exports_event (job_id, seq, kind, status) SELECT %(job)s, event_seq, 'note', '' FROM moved"
        " RETURNING seq",
        job=job_id,
    )
"""
# By file: the replaced text, which must occur once, and its replacement.
PATCHES = {
    "exports/models/chunk.py": (
        "    error_code = models",
        '    made_by = models.CharField(max_length=20, db_default="", blank=True)\n    error_code = models',
    ),
    "exports/worker/transitions.py": (
        "        source = %(source)s, etag",
        "        made_by = 'next', source = %(source)s, etag",
    ),
    "exports/core/wakeups.py": ("send(RUN_CHUNKS, *[{}]", 'send(RUN_CHUNKS, *[{"size": "1"}]'),
    "exports/worker/completion.py": (
        "    job = Job.objects.select_related",
        f"{EVENT}    job = Job.objects.select_related",
    ),
    "etl/pipeline/dispatch.py": ('kwargs={"task_id": task_id}', 'kwargs={"task_id": task_id, "size": 1}'),
    "etl/runstate/transitions.py": (
        '        "phase": stage,\n',
        '        "phase": stage,\n        "size_class": "small",\n',
    ),
    "config/env.py": ("    export_db_slots: int", '    ahead: str = ""\n    export_db_slots: int'),
    "config/settings.py": ('        "exports.sweep": 3600,', '        "exports.look_ahead": 1, "exports.sweep": 3600,'),
}  # fmt: skip


# Patches that make the code read and write as before documents had UUIDs. The keys of artifacts have not changed.
EARLIER = {
    "etl/models/task.py": ("default=new_uuid, db_default", 'default="", db_default'),
    "etl/runstate/state.py": ('"traceparent", "uuid", "sha256"),\n)', '"traceparent", "sha256"),\n)'),
    "etl/runstate/script.lua": ("local uuid = had[11] or ''", "local uuid = move.uuid or ''"),
    "etl/pipeline/completion.py": ("generation=state.generation, uuid=state.uuid)", "generation=state.generation)"),
}


class Release:
    """A folder of code and its processes: a web process, export and document workers, and a beat."""

    def __init__(self, site: Site, name: str, code: Path, **variables: object) -> None:
        self.site, self.name, self.code = site, name, code
        self.folder = site.folder / name
        self.folder.mkdir()
        self.variables = variables
        self.workers: list[Process] = []
        self.web: Web
        self.beat: Process

    def manage(self, *arguments: str) -> None:
        command = processes.python("manage", "manage.py", *arguments, root=self.folder, environment=self.environment())
        command.folder = self.code
        command.run_to_completion()

    def environment(self) -> dict[str, str]:
        return self.site.environment(**self.variables)

    def start(self, *, workers: int = 2) -> None:
        """Start all processes, and return when they are ready."""
        exports = dict.fromkeys((f"exports{number}" for number in range(workers)), QUEUES)
        self.start_with(**exports, documents=BOTH_QUEUES)

    def start_with(self, **workers: str) -> None:
        """Start web, beat, and workers, and return when they are ready. `workers`: their queues, by name."""
        self.web = Web(self.folder, KeptSettings(self.folder), self.environment())
        self.web.code = self.code
        for name, queues in workers.items():
            self.start_worker(name, queues)
        self.beat = processes.beat(root=self.folder, environment=self.environment())
        self.beat.folder = self.code
        self.beat.start()
        self.site.beats.append(self.beat)
        self.web.start()
        self.site.wait_for_workers()

    def start_worker(self, name: str, queues: str) -> None:
        worker = processes.worker(
            f"{self.name}-{name}", queues=queues, concurrency=2, root=self.folder, environment=self.environment()
        )
        worker.folder = self.code
        worker.grace_seconds = 40
        worker.start()
        self.workers.append(worker)
        self.site.workers.append(worker)

    def all(self) -> list[Process]:
        return [self.web.started(), *self.workers, self.beat]

    def kill(self) -> None:
        for process in self.all():
            process.kill()


class Web(processes.Web):
    """A web process with the code of another folder."""

    code: Path = PROJECT

    def new_process(self) -> Process:
        process = super().new_process()
        process.folder = self.code
        return process


def this_release(site: Site) -> Release:
    return Release(site, "this", PROJECT)


def next_release(site: Site) -> Release:
    code = patched(site, PATCHES)
    (code / "exports" / "migrations" / "9999_ahead.py").write_text(MIGRATION)
    tasks = code / "exports" / "tasks.py"
    tasks.write_text(tasks.read_text() + TASK)
    return Release(site, "next", code, AHEAD="yes")


def earlier_release(site: Site) -> Release:
    return Release(site, "earlier", patched(site, EARLIER))


def patched(site: Site, patches: dict[str, tuple[str, str]]) -> Path:
    """Create a copy of this code with these patches, and return its folder."""
    code = site.folder / "code"
    for part in PARTS:
        shutil.copytree(PROJECT / part, code / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "manage.py", code)
    for name in patches:
        (code / name).write_text(patched_text(name, patches))
    return code


def patched_text(name: str, patches: dict[str, tuple[str, str]]) -> str:
    """Return the text of a file of this code with its patch."""
    old, new = patches[name]
    text = (PROJECT / name).read_text()
    assert text.count(old) == 1, f"{name} has changed: this patch no longer applies"
    return text.replace(old, new)
