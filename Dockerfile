# HERMES with its compiled kernel and every optional feature that installs from wheels: docker build -t hermes .
# `make release-check` runs these steps without Docker: scripts/image_check.py.
FROM python:3.12-bookworm AS build
ENV HERMES_COMPILED=1
WORKDIR /src
COPY . .
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
RUN useradd --no-log-init --create-home --uid 1000 hermes
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/constraints.txt
RUN python -m pip install --no-cache-dir --constraint /wheels/constraints.txt "$(ls /wheels/*.whl)[all]"
USER hermes
WORKDIR /home/hermes
ENTRYPOINT ["hermes"]
CMD ["--help"]
