from hermes.pipelines import PIPELINES, Generate, Pipeline, Request


@PIPELINES.register("best_of_two")
def best_of_two(request: Request) -> Pipeline:
    """Two answers side by side; a judge reads both and says which."""
    question, answer = request.prompt_tokens, request.output_tokens
    both = yield Generate(question, answer), Generate(question, answer)
    yield Generate(question + sum(stage.output_tokens for stage in both), 1)


best_of_two.stages = ("generate",)
