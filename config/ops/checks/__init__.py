"""System checks of a deployment's settings, times, and folders: run by `manage.py check --deploy` and by the doctor.

They contact no server. Ids, with E or W for x: ops.x0nn for settings, ops.x1nn for times, ops.x2nn for folders.
"""

from config.ops.checks import deployment, folders, timeouts

__all__ = ["deployment", "folders", "timeouts"]
