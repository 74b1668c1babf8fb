"""What a bundle's programs can disclose: which outputs depend on which inputs, and by what.

`dependence` analyses a program, `interface` names the inputs and outputs of a bundle's programs,
`keys` refuses bundles whose programs use a device's random key otherwise than for random numbers,
and `explained` puts what is known of a bundle into facts and sentences.
"""
