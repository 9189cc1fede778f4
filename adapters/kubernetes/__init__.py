"""Kubernetes' own objects, read from manifests; the API server's side comes with its source."""
