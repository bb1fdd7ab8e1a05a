"""What goes wrong around a store while processes use it: a proxy that loses and cuts, and the stage it happens on."""
