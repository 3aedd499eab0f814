"""Jobs on queues for what outgrows one machine (docs/spark.md, "Jobs"): audit, report, drain, requeue."""
