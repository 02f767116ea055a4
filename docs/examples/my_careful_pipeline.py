from hermes.pipelines import PIPELINES, Generate, Pipeline, Request


@PIPELINES.register("shorter_when_full")
def shorter_when_full(request: Request) -> Pipeline:
    """An answer of half the length where the fullest client has less than a tenth of its KV memory left."""
    left = min(view.free_kv_tokens / view.kv_capacity_tokens for view in request.view("generate"))
    request.note("kv_left", left)
    yield Generate(request.prompt_tokens, max(1, request.output_tokens // (2 if left < 0.1 else 1)))


shorter_when_full.stages = ("generate",)
