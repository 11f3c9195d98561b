"""Digit-Five in files that `digit5` does not read, told by their names, so that an error can say what does."""

from pathlib import Path

M3SDA_FOLDER = "Digit-Five"
"""In the folder `digit5`, where the archive of M3SDA's authors unpacks; the files may lie in `digit5` itself, too."""
M3SDA_FILES = (
    "mnist_data.mat", "mnistm_with_label.mat", "usps_28x28.mat", "svhn_train_32x32.mat", "svhn_test_32x32.mat",
    "syn_number.mat",
)  # fmt: skip
DASSL_FOLDERS = ("mnist", "mnist_m", "usps", "svhn", "syn")
DASSL_SPLITS = ("train_images", "test_images")


def m3sda_folder(folder: Path) -> Path:
    """Where in the folder `digit5` the files of M3SDA's authors would lie."""
    inside = folder / M3SDA_FOLDER
    return inside if inside.is_dir() else folder


def said_of_others(folder: Path) -> str:
    """How an error about missing files begins where these are there; empty where they are not."""
    place = m3sda_folder(folder)
    if any((place / name).is_file() for name in M3SDA_FILES):
        return f"the files of M3SDA's authors in {place} are read by `--data digit5-m3sda`, not by digit5; "
    places = (f"{domain}/{split}" for domain in DASSL_FOLDERS for split in DASSL_SPLITS)
    if found := next((place for place in places if (folder / place).is_dir()), None):
        return (
            f"digit5 does not read Dassl's folders of images, such as {found}, but needs the files named here; "
            "`--data digit5-m3sda` reads the files of M3SDA's authors that those were made from; "
        )
    return ""
