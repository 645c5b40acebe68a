"""What `horovod.common` holds that programs import."""
