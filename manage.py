#!/usr/bin/env python
"""Django's command line."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        # For whoever sets the variables; as with Django's own errors, --traceback shows where it came from.
        if "--traceback" in sys.argv:
            raise
        sys.exit(str(error))
