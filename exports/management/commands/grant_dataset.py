from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from config.platform.http.staff import record_command
from exports.models import Dataset, Grant


class Command(BaseCommand):
    help = (
        "Grant a dataset to a group, or change its grant. With the first grant, only users of groups with a grant can "
        "export the dataset; without any, all users can."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="name of the dataset")
        parser.add_argument("group", help="name of the group of users; its members are chosen in the admin")
        parser.add_argument("--create", action="store_true", help="create the group if it does not exist")
        parser.add_argument("--key-pattern", metavar="REGEX", default="", help="only keys that match (default: all)")
        parser.add_argument("--remove", action="store_true", help="remove the grant of the group")
        parser.add_argument(
            "--open-to-all",
            action="store_true",
            help="with --remove: allow removing the last grant, so that all users can export",
        )

    @transaction.atomic
    def handle(self, *, name: str, group: str, create: bool, remove: bool, **options: Any) -> None:
        # The lock prevents two concurrent commands from removing the last two grants.
        dataset = Dataset.objects.select_for_update(no_key=True).filter(name=name).first()
        if dataset is None:
            raise CommandError(f"Dataset {name} not found. Register it with register_dataset.")
        found = Group.objects.filter(name=group).first()
        if found is None and (remove or not create):
            advice = "" if remove else " --create creates it."
            raise CommandError(f"Group {group} not found. Existing groups: {existing_groups()}.{advice}")
        found = found or Group.objects.create(name=group)
        done = (
            removed(dataset, found, open_to_all=options["open_to_all"])
            if remove
            else granted(dataset, found, options["key_pattern"])
        )
        record_command(dataset, f"{done} By grant_dataset.")
        self.stdout.write(done)


def existing_groups() -> str:
    return ", ".join(Group.objects.order_by("name").values_list("name", flat=True)) or "none"


def granted(dataset: Dataset, group: Group, key_pattern: str) -> str:
    grant = Grant.objects.filter(dataset=dataset, group=group).first() or Grant(dataset=dataset, group=group)
    grant.key_pattern = key_pattern
    try:
        grant.full_clean()
    except ValidationError as error:
        raise CommandError("\n".join(error.messages)) from None
    is_first = not dataset.grants.exists()
    grant.save()
    keys = f"keys that match {key_pattern}" if key_pattern else "all keys"
    only = " From now on, only groups with a grant can export it." if is_first else ""
    return f"Granted {dataset} to {group}: {keys}.{only}"


def removed(dataset: Dataset, group: Group, *, open_to_all: bool) -> str:
    grant = Grant.objects.filter(dataset=dataset, group=group).first()
    if grant is None:
        raise CommandError(f"{dataset} is not granted to {group}.")
    others = dataset.grants.exclude(pk=grant.pk).exists()
    if not others and not open_to_all:
        raise CommandError(
            "This is the last grant. Without one, all users can export the dataset: add --open-to-all if they should."
        )
    grant.delete()
    return f"Removed the grant of {dataset} to {group}." + ("" if others else " All users can export it.")
