"""Mutants of grants, error messages of the source, and turns of users."""

from functools import partial

from tests.mutants.mutant import Mutant, tests_of

DATASETS = partial(Mutant, file="exports/models/dataset.py")
ACCESS = partial(Mutant, file="exports/delivery/access.py")
LINKS = partial(Mutant, file="exports/delivery/links.py")
ACTIONS = partial(Mutant, file="exports/jobs/actions.py")
TURNS = partial(Mutant, file="exports/jobs/turns.py")

grants = partial(tests_of, "tests/integration/test_grants.py")
messages = partial(tests_of, "tests/integration/test_source_messages.py")
turns = partial(tests_of, "tests/integration/test_turns.py")

MUTANTS = [
    # ---- Grants
    DATASETS(
        name="offer datasets to users without a grant",
        old=".filter(\n            is_unlimited | Exists(own)\n        )",
        new="",
        tests=grants("a_granted_dataset_does_not_exist_for_other_users"),
    ),
    DATASETS(
        name="accept keys that are not granted",
        old="bool(fits(key)) and is_granted(key)",
        new="bool(fits(key))",
        tests=grants("a_key_outside_of_the_grant_is_refused_like_one_outside_of_the_pattern"),
    ),
    LINKS(
        name="redeem a link whose owner has lost access",
        old="      AND u.is_active AND %(may_download)s\n",
        new="      AND u.is_active\n",
        tests=grants("an_accepted_job_ends_but_its_owner_cannot_download_it"),
    ),
    ACCESS(
        name="deliver a job if any of its keys is still granted",
        old="return all(map(dataset.grant_check(), keys))",
        new="return any(map(dataset.grant_check(), keys))",
        tests=grants("a_job_with_one_key_that_is_no_longer_granted_gets_no_link"),
    ),
    ACTIONS(
        name="retry for an owner who has lost access",
        old="    access.require(job)\n",
        new="",
        tests=grants("a_retry_and_a_replay_need_access"),
    ),
    # ---- Error messages of the source
    ACCESS(
        name="show owners the source's error messages even if the dataset hides them",
        old="if dataset and dataset.show_errors else",
        new="if dataset else",
        tests=messages("owners_see_it_only_if_the_dataset_shows_errors"),
    ),
    # ---- Turns
    TURNS(
        name="ignore the owner's waiting chunks when ranking a new job",
        old="SELECT max(last.rank) + 1 FROM",
        new="SELECT 0 * max(last.rank) FROM",
        tests=turns("a_job_takes_turns_with_a_hundred_of_another_user", "the_jobs_of_one_user_run_in_their_order"),
    ),
    TURNS(
        name="rank new jobs by a dataset whose slots are all in use",
        old="coalesce(min(head.rank) FILTER (WHERE d.id IN (SELECT id FROM taking_turns)), min(head.rank))",
        new="min(head.rank)",
        tests=turns("a_dataset_that_waits_for_its_own_slots_is_not_the_head_of_the_queue"),
    ),
    ACTIONS(
        name="let retried chunks keep their old ranks",
        old="rank = ranked.rank, ",
        new="",
        tests=turns("a_retry_takes_its_turn_as_a_new_job_does"),
    ),
]
