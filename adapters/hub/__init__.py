"""Hub adapters: where models are published."""
