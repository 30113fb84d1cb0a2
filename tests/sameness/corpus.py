"""All scripts of the corpus, by name."""

from sameness import case, of_environment, of_imports, of_looks, of_order, of_own_code, of_paths, of_process, of_shared

_ = of_environment, of_imports, of_looks, of_order, of_own_code, of_paths, of_process, of_shared

CASES = case.ALL
