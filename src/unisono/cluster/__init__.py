"""WHO AM I: where this process stands in the job."""
