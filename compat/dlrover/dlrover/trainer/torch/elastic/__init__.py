"""As of DLRover: ElasticTrainer, ElasticDistributedSampler, ElasticDataLoader."""
