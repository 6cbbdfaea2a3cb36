#!/usr/bin/env python
"""Django's command line."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        from config.ops.command_line import Commands  # reads the settings

        Commands(sys.argv).execute()
    except ImproperlyConfigured as error:
        # For whoever sets the variables; as with Django's own errors, --traceback shows where it came from.
        if "--traceback" in sys.argv:
            raise
        sys.exit(str(error))
