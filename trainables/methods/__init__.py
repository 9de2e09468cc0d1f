"""The training methods: losses, augmentation, what each needs."""
