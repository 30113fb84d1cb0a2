"""Text to the `.bin` and `.idx` that Megatron-LM, megatron-core and gpt-neox train on: `phalanx-preprocess`.

The input is cut into splits (plan.py). Each is tokenized on its own (worker.py), by processes of this machine (pool.py)
or by Spark's executors (spark.py), into a part file (docs/formats/data-parts.md); commit.py joins the parts in the
order of the input. So nothing of the result depends on who did the work, and a killed run goes on from its parts.
docs/data.md is the user's page. Nothing here needs torch; what it needs is phalanx[data].
"""
