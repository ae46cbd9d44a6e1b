# Not built by a test: no container engine runs where the tests run. tests/deploy/test_compose.py checks its names.
#
#   docker buildx build --platform linux/amd64,linux/arm64 -f deploy/docker/collector.Dockerfile -t otelcol-laggard .
#   docker run --env GATEWAY=gateway:14317 otelcol-laggard                      # --config /etc/laggard/gateway.yaml: a gateway
FROM golang:1.26 AS build
COPY scripts/tools/build_collector.sh scripts/tools/go_builds.sh /laggard/scripts/tools/
COPY otel-collector/builder.yaml /laggard/otel-collector/
RUN CGO_ENABLED=0 /laggard/scripts/tools/build_collector.sh && mkdir -p /state/otelcol-laggard

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /laggard/.cache/tools/bin/otelcol-laggard /usr/local/bin/
COPY --from=build --chown=nonroot:nonroot /state /var/lib
COPY otel-collector/agent.yaml otel-collector/gateway.yaml /etc/laggard/
VOLUME /var/lib/otelcol-laggard
EXPOSE 4317 4318 14317
ENTRYPOINT ["/usr/local/bin/otelcol-laggard"]
CMD ["--config", "/etc/laggard/agent.yaml"]
