# Not exercised by a test: it takes a container engine. tests/deploy/test_kubernetes.py runs what it would hold.
# What `laggard kubernetes` brings into pods: the packages alone, for any image that has Python 3.10 or newer.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --file deploy/docker/instrumentation.Dockerfile --tag laggard-instrumentation:0.1.0 .
FROM python:3.12-slim AS packages
COPY . /source
RUN pip install --no-cache-dir --target /laggard --constraint /source/constraints.txt '/source[otel]'

FROM busybox:stable
COPY --from=packages /laggard /laggard
USER 65534:65534
