"""Routes into a job through its scheduler, which knows where the job runs and starts the bridge
there. One file for each scheduler."""
