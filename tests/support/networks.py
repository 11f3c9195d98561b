"""Small backbones of the families that timm has."""

FAMILIES = {
    "resnet": ("test_resnet", 64, (96, 2, 2)),
    "mobilenet": ("mobilenetv2_035", 32, (1280, 1, 1)),
    "efficientnet": ("test_efficientnet", 64, (256, 2, 2)),
    "convnext": ("test_convnext", 64, (64, 2, 2)),
    "swin": ("swin_tiny_patch4_window7_224", 32, (768, 1, 1)),
    "deit": ("deit_tiny_patch16_224", 32, (192, 2, 2)),
    "vit": ("test_vit", 48, (64, 3, 3)),
}
"""By family the name of a small member, an image size and the shape of its map."""
