"""Commands of the pages that no test runs, each with the reason, and commands that only slow tests run.

Keys are regular expressions that match a whole command. `test_commands.py` refuses an entry that matches no command.
"""

NOT_RUN = {
    r"hermes sweep sweeps/chatbot-replicas .*|hermes (plot chatbot(-report)?|report chatbot-report) .*":
        "tests/docs/test_readme.py runs them",
    r"hermes conform .* --engine vllm .*": "needs vLLM; tests/deploy/test_engine_conform.py with HERMES_VLLM_PYTHON",
    r"hermes conform .* --engine sglang .*": "needs SGLang; evidence/test_sglang_conform.py, HERMES_SGLANG_PYTHON",
    r"make compiled|PYTHONPATH=build/compiled .*|HERMES_COMPILED=1 .*":
        "compiles for two minutes; `make test-compiled`",
    r"make (run|test)": "make a virtual environment, which needs a package index; `.ci/run` calls make",
    r"make (bench|conformance .*)": "measures the machine, or needs engines",
    r"pip install .*|python3\.11 -m venv .*|VENV/bin/pip .*": "installs packages: needs a package index",
    r"VENV/bin/pip install --no-deps sglang.*|python scripts/record_sglang_schedules\.py .*":
        "records schedules: needs SGLang",
    r"VENV/bin/python scripts/record_vllm_schedules\.py .*|hermes conform new": "records schedules: needs vLLM",
    r"python scripts/record_vllm_fields\.py .*": "records schedules: needs vLLM",
    r"hermes calibrate run plan\.yaml (--set device=cuda )?--python PATH.*": "measures an engine or a GPU: needs torch",
    r"hermes calibrate run card/plan-(terms|engine)\.yaml --python PATH":
        "measures a GPU; tests/calibration/test_terms.py",
    r"hermes fit card/terms\.yaml .*": "needs what a GPU gave; tests/calibration/test_terms.py",
    r"hermes calibrate run plan\.yaml|hermes calibrate run ivf\.yaml.*":
        "measures for minutes; tests/calibration has small ones (test_link, test_retrieval, test_ivf_overlap)",
    r"python -m hermes\.calibration\.collect\.terms .*": "measures on another machine: needs torch",
    r"hermes calibrate pack journal\.jsonl .*":
        "needs the journal of another machine; tests/calibration/test_harness.py",
    r"hermes profile import aiconfigurator .*":
        "needs 114 MB of kernel tables; tests/calibration/test_import_priced.py",
    r"hermes fit (steps/qwen-l40s|h100-tp4)\.yaml .*|hermes fit-roofline a\.yaml .*":
        "fits what the import of kernel tables gives; tests/calibration/test_fit.py and test_roofline_fit.py",
    r"python scripts/(build_profiles|validate_unseen_card)\.py .*": "needs kernel tables and recorded runs",
    r"python scripts/validate_vllm_gpu\.py FOLDER .*": "needs recorded runs; tests/hardware/fitted/test_vllm_gpu.py",
    r"hermes study (splitwise|datastructures|routers) .*--data .*":
        "needs data of others; tests/study/test_splitwise.py, test_datastructures.py, test_routers_study.py",
    r"hermes study \S+ --quick": "takes up to two minutes; tests/study/test_papers.py runs each in `make nightly`",
    r"hermes accuracy --data DIR .*": "needs data of others; tests/evidence/test_accuracy.py",
    r"pytest .*": "a test",
    r"hermes (observe|calibrate from-requests|compare runs/server) .*|hermes run (server|fitted)\.yaml.*":
        "need a live server; tests/calibration/test_observe.py and test_from_requests.py have small ones",
    r"hermes sweep sizes\.yaml -o sizes --executor ray .*": "needs a Ray cluster; tests/explore/test_ray.py",
    r"hermes trace get .*": "needs the network; tests/workload/test_load_drivers.py has a local server",
    r"python scripts/sentence_embeddings\.py .*": "needs a package with a model's weights, and embeds for minutes",
    r"PYTHON scripts/record_vllm_offload\.py .*": "records schedules: needs vLLM",
    r"python scripts/(next_engine|engine_matrix)\.py .*": "records schedules: needs vLLM",
    r"hermes (trace import mooncake|trace cache) conversation.*|hermes run pipelines/prefix-tiers .*requests=12031 .*":
        "needs Mooncake's trace, which is not part of the project; tests/workload/test_importers.py reads its format",
    r"python tests/docs/rule_mutations\.py": "takes minutes; tests/docs/test_vllm_page.py breaks every rule once",
}

# `make test-all` runs these, except for searches of minutes: `make test-thorough`
LONG = {
    r"hermes (availability|capacity|size) .*|hermes explain sized/best.yaml": "many simulations",
    r"hermes optimize space\.yaml .*|hermes run search/best-0\.yaml":
        "many simulations; tests/explore/optimize/test_optimize.py has small ones",
    r"hermes optimize weights\.yaml .*":
        "many simulations; tests/docs/test_router_weights.py has two of a larger search",
    r"hermes import vllm .* -sc\.method ngram .*":
        "simulates rates with drafts; tests/deploy/test_vllm_features.py reads the flags",
    r"hermes run chatbot -v .*kv_offload=.*": "tests/clients/test_host_offload.py runs smaller ones",
    r"hermes run studies/(?!telerag|orthrus/burst).*|hermes fit-overhead .*": "a simulation of a whole system",
    r"hermes conform tests/data/vllm-schedules(-offload)?":
        "half a minute; test_conformance.py and test_offloading.py in tests/schedulers replay each file",
    r"python scripts/validate_vllm_cpu\.py.*": "many simulations",
    r"hermes fit steps\.yaml .*": "a fit of half a minute",
    r"hermes fit (searches|traces/hardware/retrieval-amd-epyc-zen5)\.yaml .*": "a fit of a quarter of a minute",
}

# `make test-studies` runs these
WHOLE = {r"hermes study \S+( --set \S+)?": "a whole study takes minutes"}
