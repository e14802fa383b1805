"""What the gateway answers over HTTP: a module for each route."""
