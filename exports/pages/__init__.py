"""What people see of exports in a browser: the list, the form, and a job while it runs and afterwards."""
