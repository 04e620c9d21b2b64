// Package rootfs holds the proof that our images are what an independent
// unpacker makes of the same layers.
//
// Random stacks of layers are unpacked by umoci into a directory and built by
// internal/rootfs into an image; the image is read back through the kernel,
// our own reader and debugfs. A third opinion, a model of a page, says what
// umoci cannot. The package is tests alone: nothing may import it, and no test
// may leave a mount or a file behind.
package rootfs
