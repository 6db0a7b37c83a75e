"""Into a job by its scheduler's own way: the scheduler says where the job runs, and starts the
bridge there. One file a scheduler."""
