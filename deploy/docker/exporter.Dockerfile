# Not exercised by a test: it takes a container engine.
# The node exporter.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --file deploy/docker/exporter.Dockerfile --tag laggard-exporter:0.1.0 .
FROM python:3.12-slim AS packages
COPY . /source
RUN pip install --no-cache-dir --prefix /packages --constraint /source/constraints.txt '/source[exporter]'

FROM python:3.12-slim
COPY --from=packages /packages /usr/local
USER 65534:65534
EXPOSE 9495
ENTRYPOINT ["laggard-exporter"]
