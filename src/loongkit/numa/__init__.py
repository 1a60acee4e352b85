"""Where the processes of a job run: topology, plans, and their application. No torch in here."""
