"""Jobs on queues for what outgrows one machine (docs/spark-jobs.md, "Jobs"): audit, report, drain, requeue."""
