// The tool that packs the images of upstream's test pods, in a module of its own so that the product does not depend on
// what it needs.
module github.com/nftproxy/nftproxy/e2e/conformance/images

go 1.26.8

require github.com/google/go-containerregistry v0.22.1

require (
	github.com/klauspost/compress v1.19.2 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
)
