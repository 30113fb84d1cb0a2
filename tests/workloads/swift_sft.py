"""`swift sft`, without a faster all-reduce, which DeepSpeed would compile for a minute."""

import deepspeed
from swift.pipelines import sft_main

if __name__ == "__main__":
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    sft_main()
